"""Help for the notebooks: checks, figures, widgets, and the tools that keep the stored notebooks true."""
