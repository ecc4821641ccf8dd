"""A chat for browsers: its pages, the SDK that they load, and the server of `muster up --demo` that hands them out."""
