"""Where Ray is: plain classes become actors here, one a file."""
