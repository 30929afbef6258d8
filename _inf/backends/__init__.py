"""The engines that answer requests; `verl` is verl's SGLangRollout on SGLang. A new backend is a
folder with a class that implements `Backend` (`base.py`); `registry.py` lists and starts it."""
