package node

import (
	"errors"
	"fmt"
	"slices"

	"dsmd/pagetable"
	"dsmd/pagetable/spill"

	"go.uber.org/zap"
)

// withSpill puts a spill file beneath a table, if the node is to have one. It closes the table if
// it fails.
func withSpill(cfg *Config, table pagetable.Table) (pagetable.Table, error) {
	if cfg.Memory.Spill == "" {
		return table, nil
	}
	err := spill.OnDisk(cfg.Memory.Spill)
	if err == nil {
		var with *spill.Table
		var direct bool
		if with, direct, err = spill.New(table, cfg.Memory.Spill); err == nil {
			cfg.Log.Info("pages that no node has room for go to a file", zap.String("directory", cfg.Memory.Spill), zap.Bool("bypasses_page_cache", direct))
			return with, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("%w (--spill)", err), table.Close())
}

// toFile has pages go to the spill file. It returns how many do.
func (r *room) toFile(pages []pagetable.Page) (leave int) {
	if r.spill == nil || r.noSpill != nil {
		return 0
	}
	slices.Sort(pages)
	r.drive.exec.perform()
	leave, err := r.spill.Spill(pages...)
	if err != nil {
		r.noSpill = err
		r.log.Error("no more pages can go to the spill file: the node goes on with what there is room for, and those in the file stay available", zap.Error(err))
	}
	for _, page := range pages { // those that have left at once are gone
		if r.queue.Has(page) && r.spill.Spilled(page) {
			r.queue.Evicted(page)
			r.dropping[page] = true
		}
	}
	return leave
}

// wentToFile notes that a page has left memory.
func (r *room) wentToFile(page pagetable.Page) {
	r.meter.count.spilled.Add(1)
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
	if r.spill != nil {
		r.meter.count.inFile.Store(int64(r.spill.Stored()))
	}
}
