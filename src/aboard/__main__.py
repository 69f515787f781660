from aboard.commands.command_line import main

main()
