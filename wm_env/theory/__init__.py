"""What can be carried at best: limits of one block, capacity of memoryless covers, achievability."""
