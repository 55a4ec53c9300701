package parallel

import "time"

// SetProgressEvery sets how often a bar is drawn.
func SetProgressEvery(d time.Duration) { progressEvery = d }
