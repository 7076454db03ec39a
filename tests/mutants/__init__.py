"""Net 3: every guard and effect of core and specification is damaged once, and somebody must see it."""
