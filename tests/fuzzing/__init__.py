"""Coverage-guided fuzzing of the code that reads bytes from outside, with atheris (libFuzzer)."""
