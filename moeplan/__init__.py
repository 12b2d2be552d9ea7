"""moeplan"""
