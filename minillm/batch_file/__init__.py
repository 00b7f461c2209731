"""OpenAI's batch files: a request in each line, through one engine, into a file that a killed run goes on with."""
