class Breaker:
    def __init__(self,*a): pass
    def fault(self): pass
    def success(self): pass
    def allows(self): return True
    def may_probe(self): return False
