"""Workers of active mode: their providers by name, and workers as processes of this machine."""
