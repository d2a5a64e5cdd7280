from contextlib import contextmanager
class Traffic:
    def __init__(self,*a): pass
    @contextmanager
    def read(self): yield
