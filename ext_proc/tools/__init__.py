"""What a person runs beside the server: each module is one subcommand of `forebay`."""
