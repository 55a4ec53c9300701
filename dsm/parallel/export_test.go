package parallel

import "time"

// SetProgressEvery sets how often a bar is drawn.
func SetProgressEvery(d time.Duration) { progressEvery = d }

// MaxPatience is how long a rank waits for others, before it looks for what they have left.
const MaxPatience = maxPatience
