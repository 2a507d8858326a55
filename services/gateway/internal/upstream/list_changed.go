package upstream

import "sync"

// ListChanged tells that a server has said that its list of tools has changed (MCP, Tools, List
// Changed Notification). The zero value is ready. It is safe for concurrent use.
type ListChanged struct {
	once sync.Once
	told chan struct{}
}

// ToolsChanged has something once the server has said so since it was received from last.
func (n *ListChanged) ToolsChanged() <-chan struct{} {
	n.once.Do(func() { n.told = make(chan struct{}, 1) })
	return n.told
}

// Tell notes that the server has said so.
func (n *ListChanged) Tell() {
	n.ToolsChanged()
	select {
	case n.told <- struct{}{}:
	default: // nobody has looked since
	}
}
