package dsmtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"

	"dsmd/internal/built"
)

// envDsmd is the environment variable with the path of a dsmd, which is built without it.
const envDsmd = "DSMTEST_DSMD"

// daemon is the path of dsmd, of the version that this test is built with.
var daemon = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(envDsmd); path != "" {
		return exec.LookPath(path)
	}
	path, err := build()
	if err != nil {
		return "", fmt.Errorf("%w; %s can name a dsmd of the version that the test uses", err, envDsmd)
	}
	return path, nil
})

// build builds dsmd from the module that the test uses, in the user's cache, since nobody tells a
// package when its tests are over. In its own folder the module has all that it depends on; the
// test's module may not.
func build() (path string, err error) {
	module, err := built.Module(context.Background(), home)
	if err != nil {
		return "", err
	}
	if module == "" {
		return "", errors.New("the source of module dsmd is not here")
	}
	return built.Dsmd(context.Background(), module)
}
