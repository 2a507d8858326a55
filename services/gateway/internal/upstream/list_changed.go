package upstream

import "sync"

// ListChanged signals that a server has reported a change to its tool list (MCP, Tools, List Changed Notification). The
// zero value is ready to use. It is safe for concurrent use.
type ListChanged struct {
	once    sync.Once
	changed chan struct{}
}

// ToolsChanged returns a channel that receives a value after the server has reported a change. Several changes can
// result in one value.
func (n *ListChanged) ToolsChanged() <-chan struct{} {
	n.once.Do(func() { n.changed = make(chan struct{}, 1) })
	return n.changed
}

// Notify records that the server has reported a change.
func (n *ListChanged) Notify() {
	n.ToolsChanged()
	select {
	case n.changed <- struct{}{}:
	default: // the previous value has not been received yet
	}
}
