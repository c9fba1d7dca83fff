"""Images with annotations: masks, parts, keypoints, videos and landmarks."""
