"""Do features find objects again? Videos, keypoints and dense features."""
