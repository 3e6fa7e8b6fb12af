"""What happens to claims around restarts and changing hardware: taken over, named, mended, let go of, watched."""
