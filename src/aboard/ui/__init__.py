"""Terminal and JSON output. One renderable per file; nothing here decides or acts."""
