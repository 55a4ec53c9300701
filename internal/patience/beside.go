package patience

import (
	"flag"
	"runtime"
	"strconv"
)

// Beside has up to n parallel tests of a package run beside each other even on few cores, unless
// -parallel says otherwise. It is for the TestMain of packages whose tests mostly wait: for a
// timer, a connection, or a node that is to be taken for dead.
func Beside(n int) {
	// -parallel, if it is given, is parsed later
	if err := flag.Set("test.parallel", strconv.Itoa(max(n, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
}
