package atomicfile

// RenameOnly makes w work as on systems that can't exchange files.
func (w *Writer) RenameOnly() { w.renameOnly = true }

// SetAt sets a function that is called after each step.
func (w *Writer) SetAt(at func(step string)) { w.at = at }
