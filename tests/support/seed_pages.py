"""What the pages that this project began with say, as written there."""

TOOL_SCHEMA = """
tools:
  - name: calculator
    description: Perform arithmetic calculations
    parameters:
      type: object
      properties:
        expression:
          type: string
          description: Math expression to evaluate
      required: [expression]
"""
