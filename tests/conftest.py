"""Property tests have no time limit per example, as machines are shared, and a failure prints how to repeat it."""

from hypothesis import settings

settings.register_profile("warmline", deadline=None, print_blob=True)
settings.load_profile("warmline")
