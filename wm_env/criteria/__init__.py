"""What a block is judged by: costs, objectives, channels behind the text, and the credit of each state."""
