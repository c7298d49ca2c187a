from coderack_lab.cli import main

main()
