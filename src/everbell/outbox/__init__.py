"""The outbox: events that applications schedule inside their own PostgreSQL transactions, and their collection"""
