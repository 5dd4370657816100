"""What not saying a fact of a run costs, on the record: hide and seek."""
