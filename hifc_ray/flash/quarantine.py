class Quarantine:
    def __init__(self,*a): pass
