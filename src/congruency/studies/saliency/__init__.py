"""The saliency studies: recipes, runner, pages."""
