"""The end-to-end experiment on real engines, with one report; `gpu_e2e.cpu` is the profile that runs anywhere."""
