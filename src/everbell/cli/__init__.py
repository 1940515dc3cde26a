"""The command line: `everbell`. `main` is the entry; each group of commands is a module with a `register` function."""
