package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"

	"golang.org/x/sys/unix"
)

// folder is a directory with a file for each output of each child: rank-0.stdout, node-1.stderr and
// so on. A file is made when the first text for it comes, and is open until this process ends.
type folder struct {
	dir   string
	width int // of the numbers in names, so that they sort

	mu    sync.Mutex
	files map[string]*sink // by name; guarded by mu
}

// newFolder makes the directory.
func newFolder(dir string, width int) (*folder, error) {
	err := os.MkdirAll(dir, 0o777)
	if err == nil {
		err = os.NewSyscallError("access of "+dir, unix.Access(dir, unix.W_OK|unix.X_OK))
	}
	if err != nil {
		return nil, fmt.Errorf("launch: the directory for what programs print: %w", err)
	}
	return &folder{dir: dir, width: width, files: map[string]*sink{}}, nil
}

// ofFolder are the names of the files of a folder.
var ofFolder = regexp.MustCompile(`^(rank|node)-\d+\.(stdout|stderr)$`)

// clear removes what earlier jobs have left: they may have had more children. There may be no
// folder.
func (f *folder) clear() error {
	if f == nil {
		return nil
	}
	files, err := os.ReadDir(f.dir)
	for _, file := range files {
		if file.Type().IsRegular() && ofFolder.MatchString(file.Name()) {
			if gone := os.Remove(filepath.Join(f.dir, file.Name())); !errors.Is(gone, fs.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("launch: what an earlier job has printed: %w", err)
	}
	return nil
}

// sink is what is printed by one output of one child. Whoever looks at the file sees it at once.
func (f *folder) sink(id childID, stream string, l layout) (*sink, error) {
	who := "rank"
	if id.Role == daemon {
		who = "node"
	}
	name := fmt.Sprintf("%s-%0*d.%s", who, f.width, id.Index, stream)
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.files[name]; s != nil {
		return s, nil
	}
	file, err := os.Create(filepath.Join(f.dir, name))
	if err != nil {
		return nil, err
	}
	s := newSink(file)
	s.layout, s.keep = l, 0
	f.files[name] = s
	return s, nil
}
