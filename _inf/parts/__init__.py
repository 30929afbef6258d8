"""The capabilities of the engine that a plain call does not ask for, a folder each (`Part`)."""
