from aboard.cli import main

main()
