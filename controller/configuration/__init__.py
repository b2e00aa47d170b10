"""What a user wrote, understood or refused: YAML → `schema` → what the lifecycle decides with.

`source` reads a file and knows its lines, `parse` says what is wrong with which field, `plan` turns
what is right into policy and job specs. All of it is pure but for reading the file.
"""
