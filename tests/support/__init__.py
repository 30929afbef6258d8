"""What several tests share: models, scripted servers, clients, references, random cases."""
