"""What people see: terminal and JSON. One renderable a file; nothing here decides or acts."""
