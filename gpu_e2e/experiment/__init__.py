"""The experiment of RFC 7.2 and 7.3: a fixed plan, its sections, one report; one code path for every profile."""
