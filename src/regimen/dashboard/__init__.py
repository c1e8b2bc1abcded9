"""`regimen dashboard`: the live page. It reads run directories and never writes; training does not know of it."""
