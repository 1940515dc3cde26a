"""Everbell in web frameworks, one module each. Each module needs its extra, as in `everbell[fastapi]`."""
