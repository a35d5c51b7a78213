def write_card(s,m): (s/"README.md").write_text("card")
