"""The public interface: protocol buffers, and the code generated from them."""
