"""Which blocks stay and which leave: one algorithm a file. They see arrays of features; `registry` names them."""
