"""The capabilities of the engine beyond a plain call, a folder each (`Part`)."""
