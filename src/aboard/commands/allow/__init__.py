"""`aboard allow`: consents to settings of a file that was found, not named."""
