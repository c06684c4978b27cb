"""Taking the kit's models to other runtimes."""
