from aboard.cli.main import main

main()
