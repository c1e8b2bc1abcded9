"""Airspace: aircraft under one shared policy that should reach their waypoints and stay 5 NM apart."""
