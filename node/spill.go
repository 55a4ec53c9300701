package node

import (
	"errors"
	"fmt"
	"slices"

	"dsmd/pagetable"
	"dsmd/pagetable/backing"

	"go.uber.org/zap"
)

// CheckSpill returns an error that says why, if a directory cannot have a spill file on this
// machine.
func CheckSpill(dir string) error {
	if err := backing.CheckDir(dir); err != nil {
		return fmt.Errorf("%w (--spill)", err)
	}
	return nil
}

// withSpill lets the pages of a table be elsewhere than in memory: in a spill file, if the node is
// to have one. It closes the table if it fails.
func withSpill(cfg *Config, table pagetable.Table) (pagetable.Table, error) {
	dir := cfg.Memory.Spill
	if dir != "" {
		if err := CheckSpill(dir); err != nil {
			return nil, errors.Join(err, table.Close())
		}
	}
	with, direct, err := backing.New(table, dir)
	switch {
	case err != nil && dir != "":
		return nil, errors.Join(fmt.Errorf("%w (--spill)", err), table.Close())
	case err != nil:
		return nil, errors.Join(err, table.Close())
	case dir != "":
		cfg.Log.Info("pages that no node has room for go to a file", zap.String("directory", dir), zap.Bool("bypasses_page_cache", direct))
	}
	return with, nil
}

// toFile has pages go to the spill file. It returns how many do.
func (r *room) toFile(pages []pagetable.Page) (leave int) {
	if !r.store.CanSpill() || r.noSpill != nil {
		return 0
	}
	slices.Sort(pages)
	r.drive.exec.perform()
	leave, err := r.store.Spill(pages...)
	switch {
	case err == nil:
	case !errors.Is(err, backing.ErrFull): // pages are between memory and the file
		r.drive.exec.end.breakDown(fmt.Errorf("node: pages leave memory: %w", err))
	default:
		r.noSpill = err
		r.log.Error("no more pages can go to the spill file: the node goes on with what there is room for, and those in the file stay available", zap.Error(err))
	}
	r.meter.count.spilled.Add(uint64(leave))
	r.leaving(pages)
	return leave
}

// unload has pages leave memory that are in files already. It returns how many do.
func (r *room) unload(pages []pagetable.Page) (leave int) {
	if len(pages) == 0 {
		return 0
	}
	slices.Sort(pages)
	r.drive.exec.perform()
	leave, err := r.store.Unload(pages...)
	if err != nil {
		r.drive.exec.end.breakDown(fmt.Errorf("node: unload pages: %w", err))
	}
	r.meter.count.unloaded.Add(uint64(leave))
	r.leaving(pages)
	return leave
}

// leaving notes which of these pages are on their way out of memory. Those that have left at once
// are gone.
func (r *room) leaving(pages []pagetable.Page) {
	for _, page := range pages {
		if r.queue.Has(page) && r.store.Spilled(page) {
			r.queue.Evicted(page)
			r.dropping[page] = true
		}
	}
}

// wentToFile notes that a page has left memory.
func (r *room) wentToFile(page pagetable.Page) {
	r.queue.Remove(page)
	delete(r.dropping, page)
	r.changed()
}

// cameBack notes that a page is in memory again.
func (r *room) cameBack(page pagetable.Page) {
	r.meter.count.unspilled.Add(1)
	r.arrived(page)
}

// gauge makes readable to others how many pages are in the spill file.
func (r *room) gauge() {
	if r.store != nil {
		r.meter.count.inFile.Store(int64(r.store.Stored()))
	}
}
