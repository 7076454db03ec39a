"""TLC at hand: run the models of tla/, read what TLC prints, and hold the core's graph against the specification's."""
