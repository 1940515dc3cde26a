"""The pages of the documentation that are made from the code: `python -m reference` writes them."""
